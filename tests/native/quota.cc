// Prints the CPU quota that the files below a folder set.
#include <cstdio>

#include "cpu_quota.h"

int main(int count, char** arguments) {
  if (count != 2) return 1;
  std::printf("%g\n", heed::cpu_quota(arguments[1]));
  return 0;
}
