// The version of te-train. It is a separate library, so that a new commit recompiles as little as possible.
#pragma once

namespace te::apps {

/// "0.1.0"
const char* project_version();
/// The commit of the sources, with "-dirty" if files were changed; "unknown" outside a git repository.
const char* build_commit();

}  // namespace te::apps
