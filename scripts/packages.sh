#!/bin/sh
# Packs dist/probing_VERSION-1_MACHINE.deb and dist/probing-VERSION-1.MACHINE.rpm from build/zig, with the service, the manual
# page, completions and units for systemd. dpkg-deb makes the one, rpmbuild the other where it is installed (Debian: rpm).
# Nothing is started or enabled by installing them, and removing them leaves nothing.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
machine=$(uname -m)
version=$(cat VERSION)
: "${SOURCE_DATE_EPOCH:=$(stat -c %Y CHANGELOG.md)}"
export SOURCE_DATE_EPOCH
umask 022

scripts/build.sh zig all
scripts/build.sh zig probing-serve
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
root=$tmp/root
usr=$root/usr
cmake --install build/zig --strip --prefix "$usr" >/dev/null
strip -o "$usr/bin/probing-serve" build/zig/bin/probing-serve
chmod 644 "$usr"/lib/probing/*.so

mkdir -p "$usr/share/man/man1" "$usr/share/bash-completion/completions" "$usr/share/zsh/vendor-completions" \
    "$usr/share/fish/vendor_completions.d" "$usr/lib/systemd/system" "$usr/lib/systemd/user" "$usr/share/doc/probing"
build/zig/bin/probing man | gzip -9n >"$usr/share/man/man1/probing.1.gz"
for name in probe probing-sql probing-serve; do
    ln -s probing.1.gz "$usr/share/man/man1/$name.1.gz"
done
build/zig/bin/probing completions bash >"$usr/share/bash-completion/completions/probing"
ln -s probing "$usr/share/bash-completion/completions/probe"
build/zig/bin/probing completions zsh >"$usr/share/zsh/vendor-completions/_probing"
build/zig/bin/probing completions fish >"$usr/share/fish/vendor_completions.d/probing.fish"
sed 's|/usr/bin/env probing|/usr/bin/probing|; /^# Set to where/s/.*/# Add --record 1 --watchdog 60s --archive to keep watch./' \
    examples/serve/probing.service >"$usr/lib/systemd/user/probing.service"
cp examples/serve/probing-machine.service "$usr/lib/systemd/system/probing.service"
gzip -9n <CHANGELOG.md >"$usr/share/doc/probing/changelog.gz"
cp scripts/packages/copyright "$usr/share/doc/probing/"

pack_deb() {
    case $machine in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; esac
    mkdir -p "$root/DEBIAN" "$usr/share/lintian/overrides"
    cp scripts/packages/lintian-overrides "$usr/share/lintian/overrides/probing"
    printf 'probing (%s-1) unstable; urgency=medium\n\n  * Release %s: see changelog.gz.\n\n -- %s  %s\n' "$version" "$version" \
        "$(sed -n 's/^Maintainer: //p' scripts/packages/control)" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" |
        gzip -9n >"$usr/share/doc/probing/changelog.Debian.gz"
    sed "s/@VERSION@/$version/; s/@ARCH@/$arch/; s/@SIZE@/$(du -sk "$usr" | cut -f1)/" scripts/packages/control >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f | LC_ALL=C sort | xargs md5sum >DEBIAN/md5sums)
    find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb -Zxz --root-owner-group --build "$root" "$tmp/probing_$version-1_$arch.deb" >/dev/null
    rm -r "$root/DEBIAN" "$usr/share/lintian" "$usr/share/doc/probing/changelog.Debian.gz"
}

pack_rpm() {
    rpmbuild -bb --quiet --target "$machine" --define "_topdir $tmp/rpm" --define "_rpmdir $tmp" \
        --define "_rpmfilename probing-$version-1.$machine.rpm" --define "version_ $version" --define "root_ $root" \
        --define "clamp_mtime_to_source_date_epoch 1" --define "use_source_date_epoch_as_buildtime 1" \
        --define "_buildhost localhost" --define "_binary_payload w6.xzdio" scripts/packages/probing.spec
}

mkdir -p dist
pack_deb
if command -v rpmbuild >/dev/null 2>&1; then
    pack_rpm
else
    echo "packages: no .rpm, since rpmbuild is not installed (Debian: rpm)"
fi
for package in "$tmp"/probing*.deb "$tmp"/probing*.rpm; do
    [ ! -e "$package" ] || mv "$package" dist/
done
ls -l dist/probing_"$version"-1_*.deb dist/probing-"$version"-1.*.rpm 2>/dev/null || true
