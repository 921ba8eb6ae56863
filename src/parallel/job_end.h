// Shared flag of this host's ranks: one of them is ending the job (World::abort). Both functions are safe in signal
// handlers.
#pragma once

namespace te::parallel {

void announce_job_end();
bool job_is_ending();

}  // namespace te::parallel
