// SPDX-License-Identifier: Apache-2.0
// Times of every kernel and copy of a program on a GPU, and every time the host waits, through CUPTI's activity
// records. Build and use:
//   g++ -O2 -shared -fPIC -I/usr/local/cuda/include kernel_times.cpp -o libkernel_times.so -L/usr/local/cuda/lib64 -lcupti
//   CUDA_INJECTION64_PATH=$PWD/libkernel_times.so build/.../nibble bench --backend cuda ...
// Prints a table at the end: name, calls, total and mean time, share. KERNEL_TIMES_SKIP leaves out that many first
// seconds (library plans, memory); nodes of CUDA graphs are listed one by one.
#include <cupti.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Total {
  long long calls = 0;
  double microseconds = 0;
};

std::mutex lock;
std::map<std::string, Total> kernels, waits;
unsigned long long first = 0;
double skip_ns = 0;

std::string readable(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string out = status == 0 ? text : name;
  std::free(text);
  return out.substr(0, 110);
}

void count(std::map<std::string, Total>& table, const std::string& name, unsigned long long start,
           unsigned long long end) {
  const std::lock_guard<std::mutex> guard(lock);
  if (first == 0) first = start;
  if (static_cast<double>(start - first) < skip_ns) return;
  Total& t = table[name];
  ++t.calls;
  t.microseconds += static_cast<double>(end - start) * 1e-3;
}

void look(const CUpti_Activity* record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto* k = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    count(kernels, readable(k->name), k->start, k->end);
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
    count(kernels, "memcpy kind " + std::to_string(m->copyKind), m->start, m->end);
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto* m = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
    count(kernels, "memset", m->start, m->end);
  } else if (record->kind == CUPTI_ACTIVITY_KIND_SYNCHRONIZATION) {
    const auto* s = reinterpret_cast<const CUpti_ActivitySynchronization*>(record);
    count(waits, "host waits, type " + std::to_string(s->type), s->start, s->end);
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* records) {
  *size = 8 << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) look(record);
  std::free(buffer);
}

void print(const char* title, const std::map<std::string, Total>& table) {
  std::vector<std::pair<std::string, Total>> rows(table.begin(), table.end());
  std::sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.second.microseconds > b.second.microseconds; });
  double all = 0;
  for (const auto& [name, t] : rows) all += t.microseconds;
  std::printf("\n%s: %.1f ms in all\n%10s %10s %10s %7s  name\n", title, all * 1e-3, "ms", "calls", "us each", "%");
  for (const auto& [name, t] : rows)
    if (t.microseconds > all * 0.002)
      std::printf("%10.2f %10lld %10.1f %7.1f  %s\n", t.microseconds * 1e-3, t.calls,
                  t.microseconds / static_cast<double>(t.calls), 100 * t.microseconds / all, name.c_str());
}

void finish() {
  cuptiActivityFlushAll(1);
  print("kernels", kernels);
  print("waits of the host", waits);
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* skip = std::getenv("KERNEL_TIMES_SKIP");
  skip_ns = skip ? std::atof(skip) * 1e9 : 0;
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  for (CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                  CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION})
    cuptiActivityEnable(kind);
  std::atexit(finish);
  return 1;
}
