package chunkstore

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

// crashDirEnv tells the test binary to be the process that is killed.
const crashDirEnv = "GRAZE_CHUNKSTORE_CRASH_DIR"

// The killed process puts chunk n, of crashSize(n) bytes, for each n that it
// reads, and writes n when Put has returned.
func crashSize(n uint64) int { return 1 + int(n*7919%60_000) }

func crashChunk(n uint64) chunk.Verified { return storetest.Chunk(chunk.SHA256, n, crashSize(n)) }

// crashChild works until it is killed.
func crashChild(dir string) {
	limit, err := strconv.ParseInt(os.Getenv("GRAZE_CHUNKSTORE_CRASH_LIMIT"), 10, 64)
	if err != nil {
		panic(err)
	}
	s, err := Open(dir, Config{Limit: limit, SyncEvery: time.Millisecond})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	work := make(chan uint64)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for n := range work {
				if err := s.Put(crashChunk(n)); err != nil {
					fmt.Println("error", err)
					continue
				}
				fmt.Println(n) // one write, so that lines don't mix
			}
		})
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		n, err := strconv.ParseUint(in.Text(), 10, 64)
		if err != nil {
			panic(err)
		}
		work <- n
	}
	close(work)
	wg.Wait()
}

// killed runs a process that puts the chunks from first on, kills it after some
// acknowledgements, and returns all that it acknowledged.
func killed(t *testing.T, dir string, limit int64, first uint64, acks int) (acked []uint64) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), crashDirEnv+"="+dir, "GRAZE_CHUNKSTORE_CRASH_LIMIT="+strconv.FormatInt(limit, 10))
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		for n := first; ; n++ {
			if _, err := fmt.Fprintln(in, n); err != nil {
				return // killed
			}
		}
	}()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		n, err := strconv.ParseUint(lines.Text(), 10, 64)
		if err != nil {
			t.Errorf("process that is to be killed: %s", lines.Text())
		}
		if acked = append(acked, n); len(acked) == acks {
			if _, err := Open(dir, Config{Limit: limit}); err == nil || !strings.Contains(err.Error(), strconv.Itoa(cmd.Process.Pid)) {
				t.Errorf("Open beside process %d returns %v", cmd.Process.Pid, err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	in.Close()
	<-fed
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return acked
}

// TestKill kills a process that puts chunks, again and again, and checks that
// nothing is lost that it acknowledged, and that nothing wrong is served.
func TestKill(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 6
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for _, tt := range []struct {
		name  string
		limit int64
		keeps bool // the limit is out of reach, so that nothing may be missing
	}{
		{"room for all", 1 << 30, true},
		{"evicting", 2 << 20, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			var acked []uint64
			for round := range rounds / 2 {
				acked = append(acked, killed(t, dir, tt.limit, uint64(round)*10_000, 1+rnd.IntN(150))...)
				s := openTest(t, dir, Config{Limit: tt.limit})
				missing := checkKilled(t, s, acked)
				if tt.keeps && missing > 0 {
					t.Fatalf("round %d: %d of %d acknowledged chunks are lost", round, missing, len(acked))
				}
				if st := s.Stats(); st.Corrupt > 0 || st.Chunks == 0 || st.Used > tt.limit {
					t.Fatalf("round %d: stats are %+v", round, st)
				}
				checkUsedAfterSync(t, s, dir)
				closeTest(t, s)
			}
		})
	}
}

// checkKilled returns how many of acked are missing, and fails the test if any
// chunk has other bytes than it should.
func checkKilled(t *testing.T, s *Store, acked []uint64) (missing int) {
	t.Helper()
	for ref := range s.Chunks() {
		p := make([]byte, ref.Size)
		if err := s.ReadAt(ref.ID, p, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := ref.Verify(p); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range acked {
		if !s.Has(crashID(n)) {
			missing++
		}
	}
	return missing
}

var crashIDs sync.Map // so that they are not hashed in every round

func crashID(n uint64) chunk.ID {
	if id, ok := crashIDs.Load(n); ok {
		return id.(chunk.ID)
	}
	id := crashChunk(n).Ref().ID
	crashIDs.Store(n, id)
	return id
}
