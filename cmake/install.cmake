# The install tree is the wheel's and the release archive's: programs find their parts relative to themselves.
include(GNUInstallDirs)
install(TARGETS probing RUNTIME DESTINATION bin)
