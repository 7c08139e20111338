#!/bin/sh
# systemd.sh OCI-LAYOUT [ROOT [KEEP]]: boots systemd in namespaces of its own, has graze
# installed there by 'graze install', and restarts, kills, upgrades and stops the
# service while a mounted image is read. The reader must see nothing of it. ROOT is the
# folder of a system that has systemd; by default it is this machine's own, of which a
# copy in memory is changed. KEEP is who holds the mounts: by default systemd, which
# must do that by itself from version 254 on.
set -eu

layout=${1:?usage: systemd.sh OCI-LAYOUT [ROOT [KEEP]]}
root=${2:-/}
keep=${3:-}
graze=$(realpath "$(dirname "$0")/../bin/graze")
work=$(mktemp -d /tmp/graze-systemd.XXXXXX)
pids= init=
cgroup=/sys/fs/cgroup/unified
[ -d "$cgroup" ] || cgroup=/sys/fs/cgroup
memory=/sys/fs/cgroup/memory/${work##*/}
cleanup() {
	# All of the machine ends with its first process, and its mounts with them.
	[ -z "$init" ] || kill -KILL "$init" 2>/dev/null || true
	end_all
	# What systemd has made in its cgroup goes when its processes have.
	find "$cgroup/${work##*/}" "$memory" -depth -type d -exec rmdir {} + 2>/dev/null || true
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

# shellcheck source=scripts/demo-lib.sh
. "$(dirname "$0")/demo-lib.sh"

# boot.sh runs as the first process of the machine, until it is systemd.
cat >"$work/boot.sh" <<'EOF'
set -eu
root=$1 graze=$2 work=$3
read -r pid _ </proc/self/stat # as the outside counts
echo "$pid" >"$work.pid"
mount --make-rprivate /
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/work" "$work/root"
cp "$graze" "$work/root/usr/local/bin/graze"
cd "$work/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --rbind /dev dev
mount -t sysfs -o ro sysfs sys
mount -t tmpfs tmpfs sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
for dir in run tmp var/lib var/log; do
	mount -t tmpfs tmpfs "$dir"
done
rm -rf etc/systemd/system etc/fstab etc/containerd
mkdir etc/systemd/system
exec env -i container=graze PATH=/usr/sbin:/usr/bin:/sbin:/bin \
	chroot . /lib/systemd/systemd --unit=multi-user.target --show-status=0 --log-target=journal
EOF

echo "systemd: starting a registry and a machine"
start_registry
push_image "$layout"
"$graze" index --state "$work/builder" --push "$image" >"$work/index.log" 2>&1
(cd "$(dirname "$0")/.." && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$work/other" ./cmd/graze)

mkdir "$work/machine"
mkdir "$cgroup/${work##*/}"
sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$cgroup/${work##*/}" \
	unshare --fork --kill-child --pid --mount --uts --ipc --cgroup \
	sh "$work/boot.sh" "$root" "$graze" "$work/machine" >"$work/boot.log" 2>&1 &
pids="$pids $!"
init=$(wait_for "$work/machine.pid" .)
in_machine() {
	nsenter --target "$init" --mount --uts --ipc --pid --cgroup --root --wd \
		env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
# until WHAT COMMAND...: waits until the command succeeds on the machine.
until_true() {
	what=$1
	shift
	for _ in $(seq 600); do
		in_machine "$@" >"$work/until.log" 2>&1 && return
		sleep 0.1
	done
	echo "systemd: $what has not come true:" >&2
	cat "$work/until.log" "$work/boot.log" >&2
	in_machine journalctl --no-pager --lines 40 >&2 || true
	exit 1
}
until_true 'the machine is up' systemctl is-active multi-user.target
version=$(in_machine systemctl --version | awk 'NR == 1 { print $2 }')

# From version 254 on systemd says itself that it has a store.
store=true whom=all
case $keep in
'') keep=auto
	[ "$version" -ge 254 ] || keep=systemd ;;
keeper) store=false whom=main ;; # the keeper is a process of the service, too
esac
cat >"$work/node.toml" <<EOF
keep-mounts = "$keep"
[containerd]
socket = "/run/graze/containerd.sock"
EOF
in_machine sh -c 'cat >/root/node.toml' <"$work/node.toml"
echo "systemd: version $version, keep-mounts = \"$keep\""
in_machine systemctl list-unit-files containerd.service >/dev/null 2>&1 || in_machine sh -c 'cat >/etc/systemd/system/containerd.service' <<EOF
[Service]
Type=oneshot
ExecStart=/bin/true
EOF
in_machine graze install --settings /root/node.toml --now
in_machine graze install --settings /root/node.toml --now | grep --quiet '^nothing to do'
until_true 'the node answers' graze stats
in_machine graze mount --node /var/lib/graze/graze.sock --index require "$image" /mnt

# The reader goes on until something is wrong.
: >"$work/reader.log"
in_machine sh -ec 'cd /mnt; while [ ! -e /run/stop ]; do
	find . -xdev | cksum
	for file in usr/bin/python3* usr/bin/perl; do
		dd "if=$file" iflag=direct bs=64k of=/tmp/read status=none
		cksum /tmp/read
	done
done' >"$work/reader.log" 2>"$work/reader.err" &
reader=$!
pids="$pids $reader"
# goes_on WHAT: the reader reads, and has seen nothing.
goes_on() {
	from=$(wc -l <"$work/reader.log")
	for _ in $(seq 600); do
		kill -0 "$reader" 2>/dev/null || break
		[ "$(wc -l <"$work/reader.log")" -lt $((from + 12)) ] || {
			held=$(in_machine systemctl show --property NFileDescriptorStore --value graze)
			echo "systemd: $1: the reader goes on; systemd holds $held descriptors"
			! "$store" || [ "$held" -gt 0 ]
			return
		}
		sleep 0.1
	done
	echo "systemd: $1: the reader does not go on:" >&2
	cat "$work/reader.err" >&2
	in_machine journalctl --no-pager --lines 60 --unit graze >&2 || true
	exit 1
}
# restarted OLD: waits until the node is another process than OLD, and answers.
restarted() {
	until_true 'the node is back' sh -c '[ "$(systemctl show --property MainPID --value graze)" != "$1" ] && graze stats' sh "$1"
}
main_pid() { in_machine systemctl show --property MainPID --value graze; }
# outside PID: how this machine calls a process of the other one.
outside() {
	for dir in /proc/[0-9]*; do
		[ "$(readlink "$dir/ns/pid")" = "$(readlink "/proc/$init/ns/pid")" ] || continue
		[ "$(awk '$1 == "NSpid:" { print $NF }' "$dir/status" 2>/dev/null)" != "$1" ] || echo "${dir#/proc/}"
	done
}
# replace FILE: the machine has another program, as by an update of its package.
replace() {
	in_machine sh -c 'cat >/usr/local/bin/new && chmod 0755 /usr/local/bin/new && mv /usr/local/bin/new /usr/local/bin/graze' <"$1"
}
# is FILE: the node runs this program.
is() {
	runs=$(in_machine sha256sum "/proc/$(main_pid)/exe" | cut -d ' ' -f 1)
	[ "$runs" = "$(sha256sum <"$1" | cut -d ' ' -f 1)" ] || { echo "systemd: the node runs another program than $1" >&2; exit 1; }
}
# out_of_memory: has the kernel kill the node. It is put into a control group beside a
# process that uses its memory up, and is the one that the kernel takes first.
out_of_memory() {
	node=$(outside "$(main_pid)")
	mkdir "$memory"
	echo 32M >"$memory/memory.limit_in_bytes"
	echo 1000 >"/proc/$node/oom_score_adj"
	echo "$node" >"$memory/cgroup.procs"
	sh -c 'echo $$ >"$1/cgroup.procs"; exec tail /dev/zero' sh "$memory" 2>/dev/null &
	wait $! || true # the kernel takes that next
	for _ in $(seq 100); do
		kill -0 "$node" 2>/dev/null || break
		sleep 0.1
	done
	! kill -0 "$node" 2>/dev/null || { echo 'systemd: the node has not been killed for want of memory' >&2; exit 1; }
	echo "systemd: the kernel has killed $(awk '$1 == "oom_kill" { print $2 }' "$memory/memory.oom_control") processes for want of memory"
}

goes_on 'at first'
for _ in 1 2 3; do
	old=$(main_pid)
	in_machine systemctl restart graze
	restarted "$old"
	goes_on 'systemctl restart'
	old=$(main_pid)
	in_machine systemctl kill --kill-whom $whom --signal KILL graze
	restarted "$old"
	goes_on 'kill -9'
done
for how in restart "kill --kill-whom $whom --signal KILL"; do
	program=$graze
	[ "$how" != restart ] || program=$work/other
	replace "$program"
	old=$(main_pid)
	# shellcheck disable=SC2086 # a command and its flags
	in_machine systemctl $how graze
	restarted "$old"
	is "$program"
	goes_on "another program, systemctl $how"
done
if [ -d /sys/fs/cgroup/memory ]; then
	old=$(main_pid)
	out_of_memory
	restarted "$old"
	goes_on 'out of memory'
else
	echo 'systemd: out of memory: not tried, which takes the memory controller of version 1 of control groups'
fi
if [ "$version" -ge 254 ] && "$store"; then
	in_machine systemctl stop graze
	in_machine systemctl start graze
	restarted 0
	goes_on 'systemctl stop, start'
fi
kinds=$(sort -u "$work/reader.log" | wc -l)
files=$(in_machine sh -c 'ls /mnt/usr/bin/python3* /mnt/usr/bin/perl' | wc -l)
[ "$kinds" -le $((files + 1)) ] || {
	echo "systemd: what the reader has read differs from round to round" >&2
	sort "$work/reader.log" | uniq -c >&2
	exit 1
}
in_machine touch /run/stop
wait "$reader"
until_true 'nobody uses the mount' umount /mnt
in_machine graze uninstall --now
if in_machine systemctl cat graze >/dev/null 2>&1; then
	echo "systemd: 'graze uninstall' has left the service" >&2
	exit 1
fi
echo "systemd: $(wc -l <"$work/reader.log") reads, no error, $kinds sums for $files files and the names"
