# Sourced from the top of the project: CMake and Ninja of build/venv come first where setup had to put them there, because
# the system's are missing or too old.
for tool in cmake ninja; do
    [ -x build/venv/bin/$tool ] && PATH=$PWD/build/venv/bin:$PATH && break
done
