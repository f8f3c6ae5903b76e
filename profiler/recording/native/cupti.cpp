// Which libcupti a process uses, and which of the builds in this library reads its records.

#include "cupti.hpp"

#include <dlfcn.h>

#include <algorithm>

namespace hprof {
namespace {

// A handle of the libcupti that the program has loaded already: there must be no second one beside it.
void* loaded_libcupti() {
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  }
  return nullptr;
}

uint32_t version_of(void* library) {
  auto get = reinterpret_cast<int (*)(uint32_t*)>(dlsym(library, "cuptiGetVersion"));
  uint32_t version = 0;
  return get != nullptr && get(&version) == 0 ? version : 0;
}

// The newest CUDA that the driver knows: 12, 13; 0 where that cannot be told.
uint32_t driver_major() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return 0;
  auto get = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDriverGetVersion"));
  int version = 0;
  return get != nullptr && get(&version) == 0 && version > 0 ? uint32_t(version) / 1000 : 0;
}

// The build for a loaded libcupti: of its major version, made with the newest headers.
CuptiBuild* build_for(uint32_t version) {
  CuptiBuild* best = nullptr;
  for (CuptiBuild* build = cupti_builds(); build != nullptr; build = build->next) {
    const bool fits = cupti_major(build->header_version) == cupti_major(version);
    if (fits && (best == nullptr || build->header_version > best->header_version)) best = build;
  }
  return best;
}

// Begins with a loaded libcupti.
StartedCupti begin_with(void* library, const Wanted& wanted) {
  const uint32_t version = version_of(library);
  if (version == 0) return {nullptr, 0, 0, "it does not tell its version: there is no driver, or one that is too old"};
  CuptiBuild* build = build_for(version);
  if (build == nullptr) {
    const uint32_t major = cupti_major(version);
    const char* wheels =
        major == 12 ? "nvidia-cuda-cupti-cu12 nvidia-cuda-runtime-cu12" : "nvidia-cuda-cupti nvidia-cuda-runtime";
    return {nullptr, version, 0,
            "the program loads CUPTI " + std::to_string(major) + " (API version " + std::to_string(version) +
                "), and hprof found no headers of it to be compiled with; pip install " + wheels};
  }
  std::string wrong = build->session->begin(library, wanted);
  if (!wrong.empty()) return {nullptr, version, build->header_version, wrong};
  return {build->session, version, build->header_version, {}};
}

}  // namespace

CuptiBuild*& cupti_builds() {
  static CuptiBuild* first = nullptr;
  return first;
}

uint32_t cupti_major(uint32_t api_version) {
  if (api_version >= 10000) return api_version / 10000;
  return api_version >= 18 ? 12 : 11;
}

StartedCupti start_cupti_of(const std::string& libraries, const Wanted& wanted) {
  if (void* library = loaded_libcupti()) return begin_with(library, wanted);
  // One that needs a newer driver fails, and the next is tried.
  std::string why;
  for (std::size_t from = 0; from < libraries.size();) {
    const std::size_t to = std::min(libraries.find(':', from), libraries.size());
    const std::string path = libraries.substr(from, to - from);
    from = to + 1;
    if (!why.empty()) why += "; ";
    void* library = dlopen(path.c_str(), RTLD_NOW);
    if (library == nullptr) {
      const char* said = dlerror();
      why += said != nullptr ? said : path + " cannot be loaded";
      continue;
    }
    const uint32_t major = cupti_major(version_of(library)), newest = driver_major();
    if (newest != 0 && major > newest) {
      why += path + ": it is of CUDA " + std::to_string(major) + ", and the driver of CUDA " + std::to_string(newest);
    } else {
      StartedCupti started = begin_with(library, wanted);
      if (started.session != nullptr) return started;
      why += path + ": " + started.wrong;
    }
    dlclose(library);
  }
  if (why.empty()) why = "no libcupti of CUDA 12 or 13 was found";
  return {nullptr, 0, 0, "CUPTI could not be started (" + why + ")"};
}

}  // namespace hprof
