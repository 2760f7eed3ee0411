# Sourced from the top of the project: CMake and Ninja of build/venv come first, where setup installed them because the
# system's are missing or too old.
if [ -x build/venv/bin/cmake ]; then
    PATH=$PWD/build/venv/bin:$PATH
fi
