# What `make install` puts where: headers, both libraries, the command, and the files by which pkg-config and CMake find
# them. Everything is relative to the prefix, so an installed tree can be moved.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/mla DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
# Apart from them, so that they are found only by who asks for them and never take the place of the vendor's own.
install(DIRECTORY include/compat/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/mla-compat FILES_MATCHING PATTERN "*.h")
install(TARGETS mla_shared mla_static mla_compat EXPORT mla-targets)
if(TARGET mla_cli)
    install(TARGETS mla_cli)
    install(FILES cli/mla.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES tests/data/deepseek_decode.safetensors DESTINATION ${CMAKE_INSTALL_DATADIR}/mla) # mla demo
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mla)
install(EXPORT mla-targets NAMESPACE mla:: FILE mla-config.cmake DESTINATION ${package_dir})
if(PROJECT_VERSION_MAJOR GREATER 0)
    set(compatibility SameMajorVersion)
else()
    set(compatibility SameMinorVersion)
endif()
write_basic_package_version_file(mla-config-version.cmake COMPATIBILITY ${compatibility})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/mla-config-version.cmake DESTINATION ${package_dir})

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH prefix_from_pcfiledir /${pkgconfig_dir} /)
foreach(package mla mla-compat)
    configure_file(cmake/${package}.pc.in ${package}.pc @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${package}.pc DESTINATION ${pkgconfig_dir})
endforeach()
