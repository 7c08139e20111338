package scheduler

import (
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

// While a reader's transfer is under way, and a moment longer, few other bodies
// are read at a time; whoever waits too long is let in.
func TestIntake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var in intake
		ctx := t.Context()
		if in.enter(ctx, chunk.Prefetch) {
			t.Error("there are turns though no reader waits")
		}
		in.begin(chunk.Demand)
		for range maxTurns {
			if !in.enter(ctx, chunk.Prefetch) {
				t.Error("the first ones have no turns")
			}
		}
		begin := time.Now()
		if in.enter(ctx, chunk.Demand); time.Since(begin) != 0 {
			t.Error("a reader has waited")
		}
		if in.enter(ctx, chunk.Backfill) || time.Since(begin) != turnPatience {
			t.Errorf("one more is let in after %v", time.Since(begin))
		}
		time.AfterFunc(turnPatience/2, in.leave)
		begin = time.Now()
		if !in.enter(ctx, chunk.Readahead) || time.Since(begin) != turnPatience/2 {
			t.Errorf("a turn came after %v", time.Since(begin))
		}
		in.end(chunk.Demand)
		time.Sleep(linger)
		if begin = time.Now(); in.enter(ctx, chunk.Prefetch) || time.Since(begin) != 0 {
			t.Error("there are turns long after the last reader's transfer")
		}
		for range maxTurns {
			in.leave()
		}
		if in.turns != 0 {
			t.Errorf("%d turns are left", in.turns)
		}
	})
}
