package setup

import "fmt"

// unit returns the systemd unit of a node.
//
// The node must be there before containerd, which asks it for snapshots at once, and
// before kubelet, which ends if the image service that it is told of does not answer.
// Its mounts outlive it, stopped or restarted: systemd holds their descriptors from
// version 254 on, and before that a keeper, a process of the service that neither KillMode nor OOMPolicy
// ends with the node. A restart that fails is tried again for ever: containers wait.
func unit(o Options) string {
	return fmt.Sprintf(`# Made by 'graze install', taken away by 'graze uninstall'.
[Unit]
Description=graze: containers start from images that are not there yet
After=network.target local-fs.target
Before=containerd.service kubelet.service
StartLimitIntervalSec=0

[Service]
ExecStart=%s node --config %s
Restart=always
RestartSec=1
NotifyAccess=main
FileDescriptorStoreMax=4096
FileDescriptorStorePreserve=yes
KillMode=process
OOMPolicy=continue
TimeoutStopSec=30
LimitNOFILE=1048576
OOMScoreAdjust=-999
Delegate=yes
RuntimeDirectory=graze
RuntimeDirectoryMode=0711
RuntimeDirectoryPreserve=yes

[Install]
WantedBy=multi-user.target
`, o.Binary, o.NodeConfig)
}
