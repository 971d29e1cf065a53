// Picks the machine that device code is compiled for.
#pragma once
#if defined(__CUDACC__)
#include "platform/cuda.h"
#else
#include "platform/host.h"
#endif
