package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// A MonitorConfig has a node tell of itself by HTTP, to whoever asks: it belongs
// on an address that only those can reach who may know.
type MonitorConfig struct {
	// Listen is the host:port. Default: nowhere.
	Listen string
	// Profile adds Go's profiles, below /debug/pprof/.
	Profile bool
}

// How long those who ask may take, so that none of them holds a connection for
// ever. A profile takes as long as it is asked to.
const (
	monitorHeaderTime = 5 * time.Second
	monitorIdleTime   = 2 * time.Minute
	monitorHeaders    = 16 << 10
	readyzTime        = time.Second
)

// serveMonitor answers by HTTP until ctx is done.
func (n *Node) serveMonitor(ctx context.Context, cfg MonitorConfig) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for metrics: %w", err)
	}
	srv := &http.Server{
		Handler:           n.monitor(cfg.Profile),
		ReadHeaderTimeout: monitorHeaderTime,
		IdleTimeout:       monitorIdleTime,
		MaxHeaderBytes:    monitorHeaders,
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// monitor returns what answers the paths.
func (n *Node) monitor(profile bool) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		newCollector(n),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		if err := n.checkReady(req.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "ok\n")
	})
	if profile {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	}
	return mux
}

// checkReady returns an error unless the node can be told to mount images: its
// store is open, and its admin socket answers.
func (n *Node) checkReady(ctx context.Context) error {
	select {
	case <-n.ready:
	default:
		return errors.New("the admin socket does not answer yet")
	}
	ctx, cancel := context.WithTimeout(ctx, readyzTime)
	defer cancel()
	remote, err := Dial(Socket(n.dir))
	if err != nil {
		return err
	}
	defer remote.Close()
	_, err = remote.SeedList(ctx) // answers at once, if only that the node is no seed
	if errors.Is(err, ErrNotRunning) || ctx.Err() != nil {
		return errors.New("the admin socket does not answer")
	}
	return nil
}
