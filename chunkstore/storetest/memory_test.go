package storetest_test

import (
	"testing"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) (storetest.Store, func(chunk.ID, int64)) {
		m := storetest.NewMemory(storetest.Limit)
		return m, m.Corrupt
	})
}
