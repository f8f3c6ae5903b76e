#include "trial.hpp"

#include <algorithm>
#include <cstdlib>

namespace hprof {

const Trial& Trial::instance() {
  static const auto* read = new Trial();  // never destroyed, as CUPTI may call until the process is gone
  return *read;
}

Trial::Trial() {
  const char* given = std::getenv("HPROF_SPOOL_TRIAL");
  const std::string text = given != nullptr ? given : "";
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t to = std::min(text.find(',', from), text.size());
    const std::string part = text.substr(from, to - from);
    const std::size_t equals = part.find('=');
    if (equals != std::string::npos) numbers_[part.substr(0, equals)] = std::strtoull(&part[equals + 1], nullptr, 10);
    from = to + 1;
  }
}

}  // namespace hprof
