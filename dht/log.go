package dht

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A gossipLog takes memberlist's log lines. Its warnings and errors become
// warnings, at most one a second; the rest, and the lines about strangers, who
// could make any number of them, are for debugging. Strangers are counted.
type gossipLog struct {
	log     *slog.Logger
	refused atomic.Uint64

	mu   sync.Mutex
	last time.Time // guarded by mu; when a warning was written last
}

// strangers are what memberlist says when packets or streams come from someone
// who lacks the key or the label. It counts them nowhere else.
var strangers = []string{
	"Decrypt packet failed",
	"discarding packet with unacceptable label",
	"discarding stream with unacceptable label",
	"failed to receive and remove the stream label header",
	"failed to receive: ",
}

const maxLogLine = 256 // bytes; the text can hold what strangers sent

// logger returns g as memberlist wants it.
func (g *gossipLog) logger() *log.Logger { return log.New(g, "", 0) }

// Write takes one line.
func (g *gossipLog) Write(line []byte) (int, error) {
	level, text := slog.LevelDebug, string(bytes.TrimSpace(line[:min(len(line), maxLogLine)]))
	if tag, rest, ok := strings.Cut(text, "] "); ok {
		switch tag {
		case "[WARN", "[ERR", "[ERROR":
			level = slog.LevelWarn
		}
		text = strings.TrimPrefix(rest, "memberlist: ")
	}
	for _, s := range strangers {
		if strings.HasPrefix(text, s) {
			g.refused.Add(1)
			level = slog.LevelDebug
		}
	}
	if level == slog.LevelWarn && !g.mayWarn() {
		level = slog.LevelDebug
	}
	g.log.Log(context.Background(), level, "gossip", "detail", text)
	return len(line), nil
}

func (g *gossipLog) mayWarn() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.last) < time.Second {
		return false
	}
	g.last = time.Now()
	return true
}
