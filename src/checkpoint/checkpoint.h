// Checkpoints: a folder per saved step, written by all ranks of a job at once and read under any other layout of ranks.
// docs/reference/file-formats.md has the format; the parts are
//
//   folder.h     names and atomic replacement of folders        manifest.h  what is where, checksums
//   saver.h      saving from a running job, in the background   loader.h    filling a rank's state
//   reader.h     tensors as wholes, for tools                   writer.h    a checkpoint from one process, for tools
#pragma once

#include "checkpoint/folder.h"
#include "checkpoint/loader.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/saver.h"
