// Checkpoints: a folder per saved step, written by all ranks of a job in parallel. A run with any parallel layout can
// read it. docs/reference/file-formats.md describes the format. Headers:
//
//   folder.h     names and atomic replacement of folders        manifest.h  tensors, their slices, checksums
//   saver.h      saving from a running job, in the background   loader.h    loading a rank's state
//   reader.h     reading full tensors, also for tools           writer.h    writing from one process, for tools
#pragma once

#include "checkpoint/folder.h"
#include "checkpoint/loader.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/saver.h"
