package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"graze/chaos"
	"graze/chaos/scenario"
	"graze/registry"
)

// newChaosProxy returns the command that puts faults before a registry.
func newChaosProxy(o *options) *cobra.Command {
	var to, listen, control string
	var seed uint64
	c := &cobra.Command{
		Use:   "proxy",
		Short: "Put faults between a cluster of your own and its registry",
		Long: `Proxy passes requests on to a registry by plain HTTP, and spoils the answers as it
is told by HTTP at its control address: PUT what the step "registry" of a scenario
has, {} ends it; GET says what has gone through. Whoever reaches the control
address can do this.`,
		Example: `  graze chaos proxy --to https://registry.example --listen :5000
  curl -X PUT --data '{door: refuse}' http://127.0.0.1:7949
  curl -X PUT --data '{fault: {kind: status, status: 503, share: 0.5}}' http://127.0.0.1:7949
  curl http://127.0.0.1:7949`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			target, err := url.Parse(to)
			if err != nil || target.Host == "" {
				return fmt.Errorf("--to is the URL of a registry, not %q", to)
			}
			faults := chaos.NewRegistry(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}, seed)
			gate, err := chaos.NewGate(listen, func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) })
			if err != nil {
				return err
			}
			steer, err := net.Listen("tcp", control)
			if err != nil {
				return errors.Join(err, gate.Close())
			}
			fmt.Fprintf(o.stdout, "%s is at %s; faults are set at %s\n", target, gate.Addr(), steer.Addr())
			return serveProxy(c.Context(), gate, faults, steer, &scenario.Control{Faults: faults, Gate: gate})
		},
	}
	f := c.Flags()
	f.StringVar(&to, "to", "", "URL of the registry")
	f.StringVar(&listen, "listen", "127.0.0.1:5000", "where nodes find it, host:port")
	f.StringVar(&control, "control", "127.0.0.1:7949", "where faults are set, host:port")
	f.Uint64Var(&seed, "seed", 1, "of what is random in the faults")
	return c
}

// serveProxy serves both until ctx is done.
func serveProxy(ctx context.Context, proxied net.Listener, faults http.Handler, steered net.Listener, control http.Handler) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return registry.Serve(ctx, proxied, faults, registry.Config{}) })
	g.Go(func() error { return registry.Serve(ctx, steered, control, registry.Config{}) })
	return g.Wait()
}
