/* nccl.h includes this header for its users; it needs nothing from it. */
