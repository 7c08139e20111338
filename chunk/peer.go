package chunk

// A PeerID names a node of the cluster by its identity, in the text form that
// libp2p gives it. It says nothing of where the node is.
type PeerID string
