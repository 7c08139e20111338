package snapshotter

import (
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
)

// mappedRoot returns who is root in the user namespace that a snapshot is for, if
// its labels name one. containerd sets them for a snapshotter with the capability
// "remap-ids".
func mappedRoot(labels map[string]string) (uid, gid int, ok bool, err error) {
	u, g := labels[snapshots.LabelSnapshotUIDMapping], labels[snapshots.LabelSnapshotGIDMapping]
	if u == "" && g == "" {
		return 0, 0, false, nil
	}
	if uid, err = hostRoot(u); err == nil {
		gid, err = hostRoot(g)
	}
	return uid, gid, true, err
}

// hostRoot returns what ID 0 is on the host by a list of mappings
// "container:host:length".
func hostRoot(mappings string) (int, error) {
	for one := range strings.SplitSeq(mappings, ",") {
		var inside, host, length uint32
		if _, err := fmt.Sscanf(one, "%d:%d:%d", &inside, &host, &length); err != nil {
			return 0, fmt.Errorf("mapping %.80q of IDs is not container:host:length: %w", one, err)
		}
		if inside == 0 && length > 0 {
			return int(host), nil
		}
	}
	return 0, fmt.Errorf("mappings %.80q of IDs have no root", mappings)
}

// remapOptions are the mount options by which containerd maps IDs.
func remapOptions(labels map[string]string) (list []string) {
	if v := labels[snapshots.LabelSnapshotUIDMapping]; v != "" {
		list = append(list, "uidmap="+v)
	}
	if v := labels[snapshots.LabelSnapshotGIDMapping]; v != "" {
		list = append(list, "gidmap="+v)
	}
	return list
}
