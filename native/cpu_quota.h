// The CPU quota of a container, from the files of Linux' control groups. Elsewhere there are none, and no limit.
#pragma once

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

namespace heed {

// The text of a file, empty if there is none.
inline std::string read_text(const std::string& path) {
  std::string text;
  std::FILE* const file = std::fopen(path.c_str(), "r");
  if (!file) return text;
  char part[256];
  for (size_t count; (count = std::fread(part, 1, sizeof(part), file)) > 0;) text.append(part, count);
  std::fclose(file);
  return text;
}

// "quota period", both in microseconds, as processors; infinite unless both are positive integers.
inline double parse_quota(const std::string& text) {
  long long quota = 0, period = 0;
  const bool limited = std::sscanf(text.c_str(), "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0;
  return limited ? static_cast<double>(quota) / static_cast<double>(period) : std::numeric_limits<double>::infinity();
}

// The processors that this process may use at a time, such as 1.5; infinite: there is no limit. `root` is empty, or,
// for tests, a folder with such files.
inline double cpu_quota(const std::string& root) {
  double least = std::numeric_limits<double>::infinity();
  const std::string own = read_text(root + "/proc/self/cgroup");
  for (size_t begin = 0, end = 0; begin < own.size(); begin = end + 1) {
    end = std::min(own.find('\n', begin), own.size());
    const std::string line = own.substr(begin, end - begin);
    // "0::path" is of version 2, "hierarchy:controllers:path" of version 1, controllers being "cpu,cpuacct" for one.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const bool unified = line.rfind("0::", 0) == 0;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (!unified && controllers.find(",cpu,") == std::string::npos) continue;
    // The limits of all groups above hold too. A container without a namespace of its own sees the topmost one alone.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      const std::string folder = root + (unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu") + path;
      least = std::min(least, parse_quota(unified ? read_text(folder + "/cpu.max")
                                                  : read_text(folder + "/cpu.cfs_quota_us") + " " +
                                                        read_text(folder + "/cpu.cfs_period_us")));
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

}  // namespace heed
