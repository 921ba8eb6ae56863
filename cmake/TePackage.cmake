# Files that `cmake --install` installs in addition to the executables (te_app), and the Debian package of `cpack`.
# scripts/package.sh builds the released package: for any x86-64 processor, installed to /usr.
include(GNUInstallDirs)
set(te_share ${CMAKE_INSTALL_DATADIR}/te-train)
install(DIRECTORY configs DESTINATION ${te_share})
install(PROGRAMS scripts/compare_loss.py scripts/convert_checkpoint.py scripts/parquet_to_jsonl.py scripts/plot_step_time.py
        scripts/plot_timeline.py scripts/dashboard.py scripts/export_metrics.py scripts/render_chat.py
        scripts/chat_turns.py DESTINATION ${te_share}/scripts)
install(DIRECTORY scripts/report scripts/monitor DESTINATION ${te_share}/scripts FILES_MATCHING REGEX "[.](py|html|css|js)$")
install(FILES scripts/chat_folder.py scripts/script_files.py scripts/terminal_text.py DESTINATION ${te_share}/scripts)
install(DIRECTORY scripts/slurm DESTINATION ${te_share}/scripts USE_SOURCE_PERMISSIONS)
install(FILES LICENSE DESTINATION ${te_share})
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${CMAKE_SOURCE_DIR}/cmake/debian-copyright DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)

if(TE_HAVE_CUDA)
  # An installation looks for CUDA's libraries first in its own lib/te-train, then in the folders of build time
  # (TeCuda). `cmake --install build/cuda --component cuda-libraries` fills lib/te-train, so that the installation can
  # be moved to a machine that has only a driver.
  foreach(library ${TE_CUDNN_LIBRARY} ${TE_NCCL_LIBRARY} ${CUDA_cublasLt_LIBRARY} ${CUDA_cudart_LIBRARY})
    get_filename_component(folder ${library} DIRECTORY)
    list(APPEND te_cuda_folders ${folder})
  endforeach()
  list(REMOVE_DUPLICATES te_cuda_folders)
  foreach(folder ${te_cuda_folders})
    foreach(library cudart cublas cublasLt cudnn cudnn_graph cudnn_ops cudnn_cnn cudnn_adv cudnn_engines_precompiled
                    cudnn_engines_runtime_compiled cudnn_heuristic nccl nvrtc nvrtc-builtins)
      file(GLOB files ${folder}/lib${library}.so.*)
      install(FILES ${files} DESTINATION lib/te-train COMPONENT cuda-libraries EXCLUDE_FROM_ALL)
    endforeach()
  endforeach()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME te-train)
set(CPACK_PACKAGE_VENDOR "te-train")
set(CPACK_PACKAGE_CONTACT "te-train developers <te-train@example.org>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "pre-training of GPT and Llama models, in FP8 on Hopper GPUs")
set(CPACK_PACKAGE_DESCRIPTION "te-train pre-trains GPT and Llama models from one YAML file.
 With CUDA the matrix multiplications run in FP8 on NVIDIA Hopper GPUs; without, everything runs on the CPU. The package has the
 programs te-train, te-data, te-convert, te-generate, te-experiment and te-bench, example configs, and the documents.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin, python3, python3-numpy, python3-scipy, python3-matplotlib, python3-jinja2")
include(CPack)
