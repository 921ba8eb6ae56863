// Which te-train this is. A library of its own, so that a new commit compiles and links no more than it must.
#pragma once

namespace te::apps {

/// "0.1.0"
const char* project_version();
/// The commit that was built, with "-dirty" when files had been changed; "unknown" outside of git.
const char* build_commit();

}  // namespace te::apps
