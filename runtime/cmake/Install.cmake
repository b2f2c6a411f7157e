# Where `cmake --install` and cpack put each file. All paths are relative to the prefix, and programs find each other
# relative to their own path, so an installed tree can be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(SHARDC_DOC_DIR ${CMAKE_INSTALL_DATADIR}/doc/shardc)
set(package_files ${CMAKE_INSTALL_LIBDIR}/cmake/shardc)

install(TARGETS shardc-run RUNTIME COMPONENT shardc)

# The plan library and its verifier: find_package(shardc), targets shardc::plan and shardc::verify.
set_target_properties(shardc_verify PROPERTIES EXPORT_NAME verify)
set_target_properties(shardc_plan PROPERTIES EXPORT_NAME plan)
set_target_properties(shardc_base PROPERTIES EXPORT_NAME base)
install(TARGETS shardc_verify shardc_plan shardc_base EXPORT shardcTargets ARCHIVE COMPONENT shardc-dev
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardc)
install(EXPORT shardcTargets NAMESPACE shardc:: DESTINATION ${package_files} COMPONENT shardc-dev)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/shardcConfig.cmake.in ${CMAKE_BINARY_DIR}/shardcConfig.cmake
                              INSTALL_DESTINATION ${package_files} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/shardcConfigVersion.cmake VERSION ${SHARDC_VERSION}
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/shardcConfig.cmake ${CMAKE_BINARY_DIR}/shardcConfigVersion.cmake
        DESTINATION ${package_files} COMPONENT shardc-dev)
# Its headers, with the tables that they include. test/tools/consumer includes each by itself.
set(plan_headers Builder.h Coordinates.h Execution.h FactorExtents.h Factors.h HostCells.h Job.def Job.h JobEnums.def Kinds.def Limits.h
                 OpColumns.def OpInfo.h Ops.def Optimizers.def Optimizers.h Plan.h Summary.h Text.h)
set(verify_headers Verify.h VerifyRules.def)
set(base_headers Attrs.def CollectiveKind.h Descriptor.h DType.h DTypes.def Io.h Report.h Status.h)
foreach(folder verify plan base)
  list(TRANSFORM ${folder}_headers PREPEND ${SHARDC_ROOT}/runtime/${folder}/)
  install(FILES ${${folder}_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardc/runtime/${folder} COMPONENT shardc-dev)
endforeach()

if(NOT TARGET shardc)
  return() # the runtime alone
endif()

install(TARGETS shardc shardc-opt RUNTIME COMPONENT shardc)
install(DIRECTORY ${SHARDC_ROOT}/recipes/ DESTINATION ${CMAKE_INSTALL_DATADIR}/shardc/recipes COMPONENT shardc)
install(DIRECTORY ${SHARDC_ROOT}/docs/editors/vscode DESTINATION ${CMAKE_INSTALL_DATADIR}/shardc/editors COMPONENT shardc)
# As they lie in the source tree, so that links between pages lead somewhere.
install(FILES ${SHARDC_ROOT}/README.md ${SHARDC_ROOT}/LICENSE DESTINATION ${SHARDC_DOC_DIR} COMPONENT shardc)
foreach(component shardc shardc-dev) # the file in which Debian looks for a package's licence
  install(FILES ${SHARDC_ROOT}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${component} RENAME copyright COMPONENT ${component})
endforeach()
install(DIRECTORY ${SHARDC_ROOT}/docs DESTINATION ${SHARDC_DOC_DIR} COMPONENT shardc PATTERN .site EXCLUDE)
install(FILES ${SHARDC_ROOT}/grammar/Recipe.g4 ${SHARDC_ROOT}/grammar/README.md DESTINATION ${SHARDC_DOC_DIR}/grammar COMPONENT shardc)
# Pages and completions that are generated into the build.
foreach(folder man bash-completion zsh fish)
  install(DIRECTORY ${CMAKE_BINARY_DIR}/share/${folder} DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT shardc OPTIONAL)
endforeach()

# The licences of what is compiled into the programs, as the distribution's packages state them; docs/libraries.md
# names all libraries.
foreach(package libantlr4-runtime-dev llvm-14-dev libfmt-dev libcli11-dev nlohmann-json3-dev libblis-serial-dev
        libsodium-dev libzstd-dev zlib1g-dev libsentencepiece-dev libncurses-dev libstdc++-12-dev)
  if(EXISTS /usr/share/doc/${package}/copyright)
    file(REAL_PATH /usr/share/doc/${package}/copyright licence)
    install(FILES ${licence} DESTINATION ${SHARDC_DOC_DIR}/licences RENAME ${package} COMPONENT shardc)
  endif()
endforeach()

# In a build tree recipes and pages are found as in an installed one.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/shardc ${CMAKE_BINARY_DIR}/share/doc/shardc)
file(CREATE_LINK ${SHARDC_ROOT}/recipes ${CMAKE_BINARY_DIR}/share/shardc/recipes SYMBOLIC)
file(CREATE_LINK ${SHARDC_ROOT}/docs ${CMAKE_BINARY_DIR}/share/doc/shardc/docs SYMBOLIC)

# All that is installed and has to be built.
add_custom_target(installed DEPENDS shardc shardc-opt shardc-run shardc_verify)
if(TARGET shardc_share)
  add_dependencies(installed shardc_share)
endif()
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON) # tests need not be built

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGE_VERSION ${SHARDC_VERSION})
set(CPACK_PACKAGE_VENDOR shardc)
set(CPACK_PACKAGE_CONTACT "the developers of shardc")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "compiles training recipes into verified plans and runs them")
set(CPACK_STRIP_FILES ON)
set(CPACK_SYSTEM_NAME ${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_SHARDC_PACKAGE_NAME shardc)
set(CPACK_DEBIAN_SHARDC_PACKAGE_RECOMMENDS "python3, shfmt")
set(CPACK_DEBIAN_SHARDC-DEV_PACKAGE_NAME shardc-dev)
set(CPACK_DEBIAN_SHARDC-DEV_PACKAGE_DEPENDS libfmt-dev)
set(CPACK_COMPONENT_SHARDC_DESCRIPTION "programs, recipes and documentation")
set(CPACK_COMPONENT_SHARDC-DEV_DESCRIPTION "the plan library with its verifier, for other programs")
include(CPack)
