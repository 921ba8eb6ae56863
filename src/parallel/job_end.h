// Whether a rank of this host is ending the job (World::abort), which the others cannot ask it. Both functions may be
// called by signal handlers.
#pragma once

namespace te::parallel {

void announce_job_end();
bool job_is_ending();

}  // namespace te::parallel
