# What `cmake --install` puts where: the program, its manual page and job scripts; and the libraries with their headers
# as targets for find_package(computron), computron::computron being all of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(floors base device storage ops comm checkpoint text guided model runtime sched dispatch requests workload placement plan serve report kernels_cpu)
if(COMPUTRON_HAVE_CUDA)
  list(APPEND floors kernels_cuda)
endif()
set(libraries)
foreach(floor ${floors})
  set_target_properties(computron_${floor} PROPERTIES EXPORT_NAME ${floor})
  list(APPEND libraries computron_${floor})
endforeach()
add_library(computron_all INTERFACE)
set_target_properties(computron_all PROPERTIES EXPORT_NAME computron)
target_link_libraries(computron_all INTERFACE computron_placement computron_plan computron_serve computron_report)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/computron)
install(TARGETS computron computron-checkpoint-index RUNTIME)
install(TARGETS ${libraries} computron_all EXPORT computron
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/computron DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT computron NAMESPACE computron:: FILE computronTargets.cmake DESTINATION ${package_folder})
configure_package_config_file(cmake/computronConfig.cmake.in ${PROJECT_BINARY_DIR}/computronConfig.cmake
  INSTALL_DESTINATION ${package_folder} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/computronConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/computronConfig.cmake ${PROJECT_BINARY_DIR}/computronConfigVersion.cmake
  DESTINATION ${package_folder})
install(DIRECTORY cmake/modules/ DESTINATION ${package_folder}/modules)

if(TARGET man_page)
  install(FILES ${PROJECT_BINARY_DIR}/computron.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
# What the job scripts need stands to them as in the source tree.
file(GLOB job_scripts CONFIGURE_DEPENDS jobs/*.sbatch)
install(PROGRAMS ${job_scripts} jobs/doctor.sh jobs/scaling-study.sh jobs/study_tables.py
  DESTINATION ${CMAKE_INSTALL_DATADIR}/computron/jobs)
install(FILES jobs/mpi-env.sh jobs/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/computron/jobs)
install(FILES inputs/models/opt-study.json DESTINATION ${CMAKE_INSTALL_DATADIR}/computron/inputs/models)

# A package for this system, of what was built: `cpack -G DEB --config build/release/CPackConfig.cmake`. Which packages it
# needs dpkg-shlibdeps reads from the program; libraries that are no package's, such as a CUDA toolkit's of pip, stop it.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "whoever built it <root@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# The launcher of the library that the program is linked with.
if("${MPI_CXX_LIBRARIES}" MATCHES mpich)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS mpich)
else()
  set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
endif()
include(CPack)
