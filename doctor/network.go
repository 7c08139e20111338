package doctor

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	dialPatience = 3 * time.Second
	maxPeers     = 64 // that are dialled; a problem of the network shows with fewer
)

// checkPeers connects to other nodes.
func checkPeers(ctx context.Context, cfg *Config) []Finding {
	if cfg.KeyFile == "" {
		return nil
	}
	if len(cfg.Peers) == 0 {
		return []Finding{warn("check cluster.join, the key, and ports 7945 to 7947 of the others ('graze peers', 'graze node -v')", "no other node is known")}
	}
	peers := cfg.Peers[:min(len(cfg.Peers), maxPeers)]
	errs := make([]error, len(peers))
	var g errgroup.Group
	for i, p := range peers {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, dialPatience)
			defer cancel()
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", p.Addr)
			if err == nil {
				err = conn.Close()
			}
			errs[i] = err
			return nil
		})
	}
	_ = g.Wait() // errors are in errs
	var list []Finding
	reached := 0
	for i, p := range peers {
		switch {
		case errs[i] != nil:
			list = append(list, warn("open TCP 7945, TCP and UDP 7946, TCP 7947 between all nodes; or set cluster.advertise there", "%s can't be reached at %s: %v", p.Name, p.Addr, errs[i]))
			continue
		case p.Corrupt > 0 || p.State == "quarantined":
			list = append(list, fail("run 'graze verify' there and look at its disk and memory", "%s has sent %d wrong chunks", p.Name, p.Corrupt))
		}
		reached++
	}
	if reached == 0 {
		list = append(list, fail("look at the firewall of this machine", "none of %d other nodes can be reached", len(peers)))
	}
	return append(list, ok("%d of %d other nodes are reached", reached, len(peers)))
}

// checkRegistries reaches registries and compares clocks with them.
func checkRegistries(ctx context.Context, cfg *Config) []Finding {
	var list []Finding
	for _, name := range cfg.Registries {
		replies, err := cfg.Registry.Ping(ctx, name)
		if err != nil {
			list = append(list, fail("correct the registry's hosts.toml", "%s: %v", name, err))
			continue
		}
		reached := false
		for _, r := range replies {
			reached = reached || r.Err == nil
			list = append(list, r.judge(name)...)
		}
		if !reached {
			list = append(list, fail("check the network, the proxy (HTTPS_PROXY), and hosts.toml", "no host of registry %s answers", name))
		}
	}
	return list
}

// judge says what an answer of a host means.
func (r *Reply) judge(registry string) []Finding {
	what := fmt.Sprintf("registry %s", registry)
	if !r.Own {
		what = fmt.Sprintf("mirror %s of %s", r.Host, registry)
	}
	if r.Err != nil {
		return []Finding{warn("check the network, the proxy (HTTPS_PROXY), and hosts.toml", "%s does not answer: %v", what, r.Err)}
	}
	if r.Date.IsZero() {
		return []Finding{ok("%s answers", what)}
	}
	skew := r.Date.Sub(r.Sent).Abs()
	do := "set the clock: timedatectl set-ntp true"
	switch {
	case skew > intolerableSkew:
		return []Finding{fail(do, "%s: the clocks differ by %v: tokens and certificates are refused", what, skew.Round(time.Second))}
	case skew > suspiciousSkew:
		return []Finding{warn(do, "%s: the clocks differ by %v", what, skew.Round(time.Second))}
	}
	return []Finding{ok("%s answers", what)}
}

// checkImages resolves images with the node's credentials.
func checkImages(ctx context.Context, cfg *Config) []Finding {
	var list []Finding
	for _, image := range cfg.Images {
		err := cfg.Registry.Resolve(ctx, image)
		switch {
		case err == nil:
			list = append(list, ok("%s can be pulled", image))
		case strings.Contains(err.Error(), "status 401") || strings.Contains(err.Error(), "status 403"):
			list = append(list, fail("log in by a client that writes Docker's config.json, or name kubelet's plugins; pods' credentials are not tried here", "%v", err))
		default:
			list = append(list, fail("check the image's name, the network, and hosts.toml", "%v", err))
		}
	}
	return list
}
