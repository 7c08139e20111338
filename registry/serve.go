package registry

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	headerTimeout = 10 * time.Second // for a request's header to come in
	idleTimeout   = 2 * time.Minute  // for the next request on a connection
	shutdownGrace = 5 * time.Second  // for requests under way at the end
)

// Serve answers the connections of ln with h, a [Registry] or what was put
// around one, until ctx is done or ln fails. It closes ln. Requests under way at
// the end have 5 seconds, then their connections are closed. Of cfg it uses the
// certificate, if there is one, and the log.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, cfg Config) error {
	defer ln.Close() // a server that fails before it serves leaves it open
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	var unused unusedConns
	srv.ConnState = unused.track
	srv.RegisterOnShutdown(unused.close)
	served := make(chan error, 1)
	go func() {
		if cfg.CertFile != "" {
			served <- srv.ServeTLS(ln, cfg.CertFile, cfg.KeyFile)
		} else {
			served <- srv.Serve(ln)
		}
	}()
	select {
	case err := <-served:
		return errors.Join(err, srv.Close())
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	err = srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		cfg.Log.Warn("connections closed under requests that took too long")
		err = srv.Close()
	}
	<-served
	return err
}

// unusedConns are connections that no request has come on yet. Clients open
// some in advance, and http.Server would wait for them when it shuts down.
type unusedConns struct {
	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu
}

// track is the server's ConnState hook.
func (u *unusedConns) track(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if state != http.StateNew {
		delete(u.conns, c)
		return
	}
	if u.conns == nil {
		u.conns = make(map[net.Conn]bool)
	}
	u.conns[c] = true
}

func (u *unusedConns) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for c := range u.conns {
		c.Close()
	}
}
