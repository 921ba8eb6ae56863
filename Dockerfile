# te-train with CUDA on Ubuntu 24.04, from this checkout. docs/how-to/install.md has the commands.
FROM nvidia/cuda:13.0.2-cudnn-devel-ubuntu24.04
COPY . /src
WORKDIR /src
# For all GPUs. No test and nothing tuned for the processor of the machine that builds the image.
RUN scripts/install_deps.sh \
  && cmake --preset cuda -DTE_NATIVE=OFF -DTE_BUILD_TESTS=OFF "-DTE_CUDA_ARCHITECTURES=80;86;89;90a;100a;120a" \
  && cmake --build build/cuda --target executables \
  && cmake --install build/cuda --prefix /usr/local \
  && rm -rf build /var/lib/apt/lists/*
# mpirun refuses to start ranks as root, which a container's user is, unless it is told to.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
CMD ["te-train", "--help"]
