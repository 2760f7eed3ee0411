# The install tree is the wheel's and the release archive's: programs find their parts relative to themselves.
include(GNUInstallDirs)
install(TARGETS probing RUNTIME DESTINATION bin)
# The link itself; a wheel cannot hold links and gets a second copy.
install(FILES $<TARGET_FILE_DIR:probing>/probe DESTINATION bin)

# The Python part for `probing launch`; and for a wheel the file that starts it with PROBING=1, beside the package.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/python/probing ${CMAKE_SOURCE_DIR}/python/launch DESTINATION lib/probing/python FILES_MATCHING PATTERN *.py)
if(SKBUILD)
    # A component of its own: scripts/dist.sh packs the same folder later, without it.
    install(FILES ${CMAKE_SOURCE_DIR}/python/probing-start.pth DESTINATION ${SKBUILD_PLATLIB_DIR} COMPONENT start EXCLUDE_FROM_ALL)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/include/probing.h DESTINATION include)
