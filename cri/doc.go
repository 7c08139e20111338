// Package cri stands between kubelet and containerd's image service. A [Proxy]
// forwards what it is asked for, and looks at one call only: PullImage brings the
// credentials of the user whose pod it is for.
//
// Those credentials are told to a [Memory], so that what the pull leaves out can be
// fetched when it is read, and a [Judge] is asked whether they are good for the
// image. So an image that is here because one user may pull it, is not given to
// another one on whose behalf nobody has asked the registry. What the judge said
// is remembered for a while, by a keyed hash of credentials and repository.
//
// The proxy forwards messages as they are: methods and fields that it does not
// know pass unchanged. runtime.v1 and runtime.v1alpha2 look the same on the wire.
// It takes methods with one request, as all of CRI are.
//
// Secrets stay in memory, and are in no error and no log.
package cri
