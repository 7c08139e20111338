package cri

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// A frame is a message that is not looked into.
type frame struct{ bytes []byte }

// codec is gRPC's codec for protocol buffers, which leaves frames as they are.
type codec struct{}

// Marshal implements encoding.Codec.
func (codec) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case *frame:
		return v.bytes, nil
	case proto.Message:
		return proto.Marshal(v)
	}
	return nil, fmt.Errorf("%T is no message", v)
}

// Unmarshal implements encoding.Codec.
func (codec) Unmarshal(p []byte, v any) error {
	switch v := v.(type) {
	case *frame:
		v.bytes = p
		return nil
	case proto.Message:
		return proto.Unmarshal(p, v)
	}
	return fmt.Errorf("%T is no message", v)
}

// Name implements encoding.Codec. It is what the other side knows.
func (codec) Name() string { return "proto" }
