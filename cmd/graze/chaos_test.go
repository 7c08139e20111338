package main

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"graze/chaos/scenario"
)

// playedAtATime is how many scenarios are played at a time: they mostly wait.
const playedAtATime = 4

// TestScenarios plays all scenarios that come with graze, and each once more without
// the mechanism that it is about: then it must fail.
func TestScenarios(t *testing.T) {
	needFUSE(t)
	needNetwork(t)
	needTools(t, "go")
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		report *scenario.Report
		err    error
	}
	var mu sync.Mutex
	all := make(map[string]outcome) // guarded by mu
	var g errgroup.Group
	g.SetLimit(playedAtATime)
	for _, name := range scenario.Names() {
		for _, off := range []bool{false, true} {
			g.Go(func() error {
				s, err := scenario.Builtin(name)
				if err != nil {
					return err
				}
				r, err := scenario.Play(t.Context(), s, scenario.Config{Binary: binary, Seed: 1, Off: off})
				mu.Lock()
				defer mu.Unlock()
				all[fmt.Sprint(name, off)] = outcome{r, err}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, name := range scenario.Names() {
		for _, off := range []bool{false, true} {
			o := all[fmt.Sprint(name, off)]
			t.Run(fmt.Sprintf("%s/off=%v", name, off), func(t *testing.T) {
				if o.err != nil {
					t.Fatal(o.err)
				}
				logReport(t, o.report)
				if o.report.OK() == off {
					t.Errorf("with its mechanism turned off: %v; what must hold has held: %v", off, o.report.OK())
				}
			})
		}
	}
}

// played plays a scenario, and logs its report.
func played(t *testing.T, binary string, s *scenario.Scenario, off bool) *scenario.Report {
	t.Helper()
	r, err := scenario.Play(t.Context(), s, scenario.Config{Binary: binary, Seed: 1, Off: off})
	if err != nil {
		t.Fatal(err)
	}
	logReport(t, r)
	return r
}

// logReport logs a report.
func logReport(t *testing.T, r *scenario.Report) {
	t.Helper()
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
}

// TestSoak plays random faults of one seed for a short time.
func TestSoak(t *testing.T) {
	needFUSE(t)
	needNetwork(t)
	needTools(t, "go")
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	if r := played(t, binary, scenario.Soak(1, 40*time.Second), false); !r.OK() {
		t.Error("what must hold does not")
	}
}

func TestChaosList(t *testing.T) {
	list := graze(t, "chaos", "list")
	for _, name := range scenario.Names() {
		if !strings.Contains(list, name+" ") {
			t.Errorf("%s is not in the list", name)
		}
	}
}
