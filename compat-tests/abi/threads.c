/* Says how many threads the process has; run with the library preloaded, and never calling it, the answer must be 1. */
#include <dirent.h>
#include <stdio.h>

int main(void) {
  int threads = 0;
  DIR* tasks = opendir("/proc/self/task");
  for (struct dirent* entry; tasks && (entry = readdir(tasks));) threads += entry->d_name[0] != '.';
  printf("%d\n", threads);
  return 0;
}
