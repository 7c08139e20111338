// Package credential has the sources of credentials that a node knows beside
// Docker's config.json, which package origin reads itself: what container
// runtimes were told when they pulled ([Memory]), and the plugins that kubelet
// asks ([Kubelet]). [Chain] puts sources in an order.
//
// A source keeps secrets in memory only, and none is in an error or in what String
// methods print: a Credential's Source names the program or file that it is from.
//
// The package does not know registries: which credential is accepted is found out
// by package origin, which asks for the next one when one is refused.
//
// All types are safe for concurrent use.
package credential
