package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"graze/chaos/scenario"
)

// TestScenarios plays all scenarios that come with graze. With GRAZE_TEST_CLUSTER
// each is played once more without the mechanism that it is about, and must fail;
// otherwise those of quickOff are.
func TestScenarios(t *testing.T) {
	needFUSE(t)
	needNetwork(t)
	needTools(t, "go")
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range scenario.Names() {
		t.Run(name, func(t *testing.T) {
			if r := playScenario(t, binary, name, false); !r.OK() {
				t.Error("what must hold does not")
			}
		})
		if os.Getenv(wholeClusterEnv) == "" && !quickOff[name] {
			continue
		}
		t.Run(name+"/off", func(t *testing.T) {
			if r := playScenario(t, binary, name, true); r.OK() {
				t.Error("the scenario passes without what it is about")
			}
		})
	}
}

// quickOff has the scenarios that fail within seconds when they are turned off.
var quickOff = map[string]bool{"outage-at-start": true, "rolling-restart": true, "liar": true}

// playScenario plays a scenario, and logs its report.
func playScenario(t *testing.T, binary, name string, off bool) *scenario.Report {
	t.Helper()
	s, err := scenario.Builtin(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := scenario.Play(t.Context(), s, scenario.Config{Binary: binary, Seed: 1, Off: off})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	return r
}

func TestChaosList(t *testing.T) {
	list := graze(t, "chaos", "list")
	for _, name := range scenario.Names() {
		if !strings.Contains(list, name+" ") {
			t.Errorf("%s is not in the list", name)
		}
	}
}
