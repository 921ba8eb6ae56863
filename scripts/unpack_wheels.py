#!/usr/bin/env python3
"""Merges the folders of NVIDIA's wheels to one toolkit tree.

    unpack_wheels.py DESTINATION WHEEL...

The wheels contain a toolkit in nvidia/cu13/{bin,include,lib,nvvm}, and cuDNN and NCCL in nvidia/{cudnn,nccl}. nvcc and
CMake expect one tree, so the first two folders of each path are dropped. Wheels contain only libfoo.so.N; links for
libfoo.so, which the linker needs, and lib64 are added. Packages of other vendors keep their top folder (include/ of
cudnn-frontend).
"""
import os
import re
import sys
import zipfile


def destination_of(name: str) -> str | None:
    """Path in the merged tree, or None for files that a build does not need (Python files, package metadata)."""
    if name.endswith("/") or ".dist-info/" in name or name.endswith(".py"):
        return None
    parts = name.split("/")
    if parts[0] == "nvidia" and len(parts) > 3:
        return None if parts[2].startswith(".") else "/".join(parts[2:])
    return name if parts[0] == "include" else None


def unpack(wheel: str, root: str) -> int:
    """Extracts one wheel; returns the number of files written."""
    count = 0
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            relative = destination_of(info.filename)
            if relative is None:
                continue
            path = os.path.join(root, relative)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with archive.open(info) as source, open(path, "wb") as sink:
                while block := source.read(1 << 22):
                    sink.write(block)
            # Programs must be executable, but not all wheels record it.
            executable = (info.external_attr >> 16) & 0o111 or re.match(r"(bin|nvvm/bin)/[^.]+$", relative)
            os.chmod(path, 0o755 if executable else 0o644)
            count += 1
    return count


def add_links(root: str) -> None:
    """Adds links libfoo.so -> libfoo.so.N for all libraries, and lib64 -> lib."""
    lib = os.path.join(root, "lib")
    if not os.path.isdir(lib):
        return
    for name in sorted(os.listdir(lib)):
        match = re.match(r"(lib[^/]+\.so)\.[\d.]+$", name)
        if match and not os.path.lexists(os.path.join(lib, match.group(1))):
            os.symlink(name, os.path.join(lib, match.group(1)))
    lib64 = os.path.join(root, "lib64")
    if not os.path.lexists(lib64):
        os.symlink("lib", lib64)


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    root = sys.argv[1]
    for wheel in sys.argv[2:]:
        print(f"{os.path.basename(wheel)}: {unpack(wheel, root)} files")
    add_links(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
