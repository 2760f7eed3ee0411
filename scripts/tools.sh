# Sourced from the top of the project: CMake and Ninja of build/venv come first where setup had to put them there, because
# the system's are missing or too old.
if [ -x build/venv/bin/cmake ]; then
    PATH=$PWD/build/venv/bin:$PATH
fi
