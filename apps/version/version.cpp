#include "version/version.h"

#include "te_version.h"  // written by cmake/WriteVersion.cmake

namespace te::apps {

const char* project_version() {
  return TE_VERSION;
}

const char* build_commit() {
  return TE_COMMIT;
}

}  // namespace te::apps
