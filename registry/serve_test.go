package registry

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// serve serves h on loopback until the test ends and returns its address.
func serve(t testing.TB, h http.Handler, cfg Config) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, h, cfg) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return ln.Addr().String()
}

func TestServe(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	addr := serve(t, r, Config{})
	resp, err := http.Get("http://" + addr + "/v2/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status is %s", resp.Status)
	}
}

func TestServeTLS(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	certFile, keyFile, pool := certificate(t)
	addr := serve(t, r, Config{CertFile: certFile, KeyFile: keyFile})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("https://" + addr + "/v2/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status is %s", resp.Status)
	}
}

func TestServeErrors(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"bad config", Config{CertFile: "only"}, "both"},
		{"no certificate", Config{CertFile: "/none.crt", KeyFile: "/none.key"}, "/none.crt"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			err = Serve(t.Context(), ln, http.NotFoundHandler(), tt.cfg)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, without %q", err, tt.want)
			}
			if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the listener is still open: %v", err)
			}
		})
	}
	t.Run("listener fails", func(t *testing.T) {
		broken := errors.New("broken")
		if err := Serve(t.Context(), failingListener{broken}, http.NotFoundHandler(), Config{}); !errors.Is(err, broken) {
			t.Errorf("error is %v", err)
		}
	})
}

type failingListener struct{ err error }

func (l failingListener) Accept() (net.Conn, error) { return nil, l.err }
func (l failingListener) Close() error              { return nil }
func (l failingListener) Addr() net.Addr            { return &net.TCPAddr{} }

// TestShutdown checks that requests under way at the end are waited for, but not
// for ever.
func TestShutdown(t *testing.T) {
	tests := []struct {
		name  string
		takes time.Duration
		want  time.Duration
		ends  bool // the request gets its answer
	}{
		{"in time", time.Second, time.Second, true},
		{"too long", time.Hour, shutdownGrace, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				ln := newPipeListener()
				ctx, stop := context.WithCancel(t.Context())
				begun := make(chan struct{})
				h := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					close(begun)
					select {
					case <-time.After(tt.takes):
					case <-req.Context().Done():
					}
				})
				done := make(chan error, 1)
				go func() { done <- Serve(ctx, ln, h, Config{Log: textLog(&log)}) }()
				answer := make(chan error, 1)
				go func() { answer <- ln.get() }()
				<-begun
				start := time.Now()
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
				// Shutdown polls, by up to half a second.
				if took := time.Since(start); took < tt.want || took > tt.want+time.Second {
					t.Errorf("shutdown took %v, not %v", took, tt.want)
				}
				if err := <-answer; (err == nil) != tt.ends {
					t.Errorf("the request ended with %v", err)
				}
				if warned := strings.Contains(log.String(), "took too long"); warned == tt.ends {
					t.Errorf("log is %q", &log)
				}
			})
		})
	}
}

// TestShutdownUnused checks that a connection without a request holds nothing
// up.
func TestShutdownUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipeListener()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Serve(ctx, ln, http.NotFoundHandler(), Config{}) }()
		client, server := net.Pipe()
		defer client.Close()
		ln.conns <- server
		synctest.Wait()
		start := time.Now()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("shutdown took %v", took)
		}
	})
}

// A pipeListener hands out connections within the process.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{make(chan net.Conn), make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// get sends a request over a new connection and reads the answer.
func (l *pipeListener) get() error {
	client, server := net.Pipe()
	defer client.Close()
	l.conns <- server
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	p, err := io.ReadAll(client)
	if err == nil && !bytes.HasPrefix(p, []byte("HTTP/1.1 200")) {
		err = errors.New("no answer")
	}
	return err
}

// certificate makes a certificate for loopback and its pool.
func certificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	for name, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert},
		keyFile:  {Type: "PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	return certFile, keyFile, pool
}
