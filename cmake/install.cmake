# The install tree is the wheel's and the release archive's: programs find their parts relative to themselves.
include(GNUInstallDirs)
install(TARGETS probing RUNTIME DESTINATION bin)
# The link itself; a wheel, which knows no links, gets a second copy.
install(FILES $<TARGET_FILE_DIR:probing>/probe DESTINATION bin)
