# shellcheck shell=sh
# image-lib.sh: what the scripts share that make images of Debian 12. They source it,
# with $out, the folder of the OCI layout, and $tag, the image's tag there. It ends
# them if the image is there already. Their own folder is gone at the end.
if [ -e "$out/index.json" ]; then
	echo "image: $out is there already"
	exit 0
fi
"$(dirname "$0")/need.sh" debootstrap umoci

mkdir -p "$(dirname "$out")"
work=$(mktemp -d "$out.XXXXXX")
rootfs=$work/bundle/rootfs
cleanup() {
	umount -l "$rootfs/proc" 2>/dev/null || true
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

# logged COMMAND...: runs a command, and shows what it said only if it fails.
logged() {
	"$@" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
}

# layer MESSAGE: what changed in the root file system becomes the next layer.
layer() {
	logged umoci repack --image "$work/oci:$tag" --refresh-bundle --history.comment "$1" "$work/bundle"
	echo "image: layer done: $1"
}

# base: begins the image; its first layer is Debian.
base() {
	logged umoci init --layout "$work/oci"
	logged umoci new --image "$work/oci:$tag"
	logged umoci unpack --image "$work/oci:$tag" "$work/bundle"
	logged debootstrap --variant=minbase bookworm "$rootfs"
	rm -rf "$rootfs"/var/cache/apt/archives/*.deb
	layer "debootstrap --variant=minbase bookworm"
}

# install NAME...: installs Debian packages.
install() {
	mount -t proc proc "$rootfs/proc"
	logged env DEBIAN_FRONTEND=noninteractive chroot "$rootfs" apt-get install -y --no-install-recommends "$@"
	umount "$rootfs/proc"
	rm -rf "$rootfs"/var/cache/apt/archives/*.deb
}

# finish: the image has its program, and becomes the layout.
finish() {
	logged umoci config --image "$work/oci:$tag" --config.cmd python3 --config.cmd /app/main.py
	logged umoci gc --layout "$work/oci"
	mv "$work/oci" "$out"
	echo "image: $out, $(du -sh "$out" | cut -f1) compressed"
}
