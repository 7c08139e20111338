package node

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r repeats
		check := func(about string, wantSkipped int, wantOK bool) {
			t.Helper()
			if skipped, ok := r.allow("m", about); skipped != wantSkipped || ok != wantOK {
				t.Errorf("%s: allow is %d, %v, want %d, %v", about, skipped, ok, wantSkipped, wantOK)
			}
		}
		check("a", 0, true)
		check("a", 0, false)
		check("b", 0, true)
		check("a", 0, false)
		time.Sleep(quiet)
		check("a", 2, true)
		check("a", 0, false)
		for i := range 3 * maxRepeats {
			check(fmt.Sprint(i), 0, true)
			if len(r.seen) > maxRepeats {
				t.Fatalf("%d things are remembered, more than %d", len(r.seen), maxRepeats)
			}
		}
	})
}
