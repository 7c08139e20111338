package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"graze/chunk"
	"graze/wire/wirepb"
)

// Limits of headers, in bytes.
const (
	MaxRequestHeader = 256 << 10
	MaxAnswerHeader  = 8 << 10

	prefix = 4 // of a frame: the header's length

	// maxFields bounds the fields of a header, those of nested messages among
	// them: an upper bound for MaxItems items and MaxParts parts.
	maxFields = 8*MaxParts + 12*MaxItems + 64
	maxDepth  = 6
)

// ErrFrame: the bytes are no message that a node would send. Test for it with
// errors.Is.
var ErrFrame = errors.New("invalid frame")

// ReadFrame reads a header of at most limit bytes. It reads no byte beyond it.
// The end of r before the first byte is io.EOF.
func ReadFrame(r io.Reader, limit int) ([]byte, error) {
	var head [prefix]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || int64(n) > int64(limit) {
		return nil, fmt.Errorf("%w: header of %d bytes, not 1 to %d", ErrFrame, n, limit)
	}
	header := make([]byte, n)
	if _, err := io.ReadFull(r, header); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return header, nil
}

// ReadRequest reads a request.
func ReadRequest(r io.Reader) (*Request, error) {
	header, err := ReadFrame(r, MaxRequestHeader)
	if err != nil {
		return nil, err
	}
	return DecodeRequest(header)
}

// WriteRequest writes q in one call of Write.
func WriteRequest(w io.Writer, q *Request) error {
	frame, err := AppendRequest(nil, q)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// ReadAnswer reads the header of an answer; its body is next in r.
func ReadAnswer(r io.Reader) (*Answer, error) {
	header, err := ReadFrame(r, MaxAnswerHeader)
	if err != nil {
		return nil, err
	}
	return DecodeAnswer(header)
}

// WriteAnswer writes the header of a in one call of Write. The caller writes the
// body.
func WriteAnswer(w io.Writer, a *Answer) error {
	frame, err := AppendAnswer(nil, a)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// AppendRequest appends q's frame to b.
func AppendRequest(b []byte, q *Request) ([]byte, error) {
	if err := q.Check(); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	pb := &wirepb.Request{
		Class: uint32(q.Class), Deadline: micros(q.Deadline), Mode: uint32(q.Mode), Level: uint32(q.Level),
		Epoch: q.Epoch, Repositories: q.Repositories, Items: make([]*wirepb.Item, len(q.Items)),
	}
	for _, id := range q.Via {
		pb.Via = append(pb.Via, string(id))
	}
	for _, digest := range q.Images {
		pb.Images = append(pb.Images, string(digest))
	}
	for i := range q.Items {
		it := &wirepb.Item{Span: spanToPB(&q.Items[i].Span)}
		for _, p := range q.Items[i].Parts {
			it.Parts = append(it.Parts, uint32(p))
		}
		pb.Items[i] = it
	}
	return appendFrame(b, pb, MaxRequestHeader)
}

// AppendAnswer appends the frame of a's header to b.
func AppendAnswer(b []byte, a *Answer) ([]byte, error) {
	if err := a.Check(); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	pb := &wirepb.Answer{
		Item: int32(a.Item), Part: int32(a.Part), Status: uint32(a.Status), Size: a.Size,
		Wait: micros(a.Wait), Reason: a.Reason,
	}
	for _, h := range a.Holders {
		pb.Holders = append(pb.Holders, &wirepb.Holder{Id: string(h.ID), Addr: h.Addr})
	}
	return appendFrame(b, pb, MaxAnswerHeader)
}

func appendFrame(b []byte, m proto.Message, limit int) ([]byte, error) {
	start := len(b)
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(append(b, 0, 0, 0, 0), m)
	if err != nil {
		return nil, err
	}
	n := len(b) - start - prefix
	if n > limit {
		return nil, fmt.Errorf("header of %d bytes is above %d", n, limit)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(n))
	return b, nil
}

// DecodeRequest decodes a header.
func DecodeRequest(header []byte) (*Request, error) {
	q, err := decodeRequest(header)
	if err != nil {
		return nil, fmt.Errorf("%w: request: %w", ErrFrame, err)
	}
	return q, nil
}

func decodeRequest(header []byte) (*Request, error) {
	var pb wirepb.Request
	if err := unmarshal(header, &pb, MaxRequestHeader); err != nil {
		return nil, err
	}
	if pb.GetClass() > math.MaxUint8 || pb.GetMode() > math.MaxUint8 || pb.GetLevel() > math.MaxUint8 {
		return nil, fmt.Errorf("class %d, mode %d, level %d", pb.GetClass(), pb.GetMode(), pb.GetLevel())
	}
	if len(pb.GetItems()) > MaxItems || len(pb.GetVia()) > MaxVia || len(pb.GetImages()) > MaxImages {
		return nil, fmt.Errorf("%d items, %d nodes that passed it on, %d images", len(pb.GetItems()), len(pb.GetVia()), len(pb.GetImages()))
	}
	deadline, err := duration(pb.GetDeadline())
	if err != nil {
		return nil, err
	}
	q := &Request{
		Class: chunk.Class(pb.GetClass()), Deadline: deadline, Mode: Mode(pb.GetMode()), Level: uint8(pb.GetLevel()),
		Epoch: pb.GetEpoch(), Repositories: pb.GetRepositories(), Items: make([]Item, len(pb.GetItems())),
	}
	for _, id := range pb.GetVia() {
		q.Via = append(q.Via, chunk.PeerID(id))
	}
	for _, digest := range pb.GetImages() {
		q.Images = append(q.Images, chunk.Blob(digest))
	}
	for i, it := range pb.GetItems() {
		if q.Items[i].Span, err = spanFromPB(it.GetSpan(), false); err != nil {
			return nil, fmt.Errorf("item %d: %w", i, err)
		}
		if len(it.GetParts()) > MaxParts {
			return nil, fmt.Errorf("item %d: %d wanted parts", i, len(it.GetParts()))
		}
		for _, p := range it.GetParts() {
			q.Items[i].Parts = append(q.Items[i].Parts, int(min(p, MaxParts)))
		}
	}
	return q, q.Check()
}

// DecodeAnswer decodes a header.
func DecodeAnswer(header []byte) (*Answer, error) {
	a, err := decodeAnswer(header)
	if err != nil {
		return nil, fmt.Errorf("%w: answer: %w", ErrFrame, err)
	}
	return a, nil
}

func decodeAnswer(header []byte) (*Answer, error) {
	var pb wirepb.Answer
	if err := unmarshal(header, &pb, MaxAnswerHeader); err != nil {
		return nil, err
	}
	if pb.GetStatus() > math.MaxUint8 || len(pb.GetHolders()) > MaxHolders {
		return nil, fmt.Errorf("status %d with %d holders", pb.GetStatus(), len(pb.GetHolders()))
	}
	wait, err := duration(pb.GetWait())
	if err != nil {
		return nil, err
	}
	a := &Answer{
		Item: int(pb.GetItem()), Part: int(pb.GetPart()), Status: Status(pb.GetStatus()), Size: pb.GetSize(),
		Wait: wait, Reason: pb.GetReason(),
	}
	for _, h := range pb.GetHolders() {
		a.Holders = append(a.Holders, Holder{ID: chunk.PeerID(h.GetId()), Addr: h.GetAddr()})
	}
	return a, a.Check()
}

// unmarshal decodes header into m, after counting the fields: a message of a few
// bytes can stand for a struct of hundreds.
func unmarshal(header []byte, m proto.Message, limit int) error {
	if len(header) > limit {
		return fmt.Errorf("header of %d bytes is above %d", len(header), limit)
	}
	fields := maxFields
	if err := scan(m.ProtoReflect().Descriptor(), header, &fields, maxDepth); err != nil {
		return err
	}
	return proto.Unmarshal(header, m)
}

// scan walks the fields of a message without decoding them. It ends with an
// error when there are more than *fields or when they nest deeper than depth.
// Fields that the message does not have, of a later version, are skipped.
func scan(md protoreflect.MessageDescriptor, b []byte, fields *int, depth int) error {
	if depth == 0 {
		return errors.New("messages nest too deeply")
	}
	for len(b) > 0 {
		if *fields--; *fields < 0 {
			return fmt.Errorf("more than %d fields", maxFields)
		}
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return protowire.ParseError(n)
		}
		if fd := md.Fields().ByNumber(num); fd != nil && fd.Message() != nil && typ == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(b)
			if err := scan(fd.Message(), inner, fields, depth-1); err != nil {
				return err
			}
		}
		b = b[n:]
	}
	return nil
}

func micros(d time.Duration) uint64 {
	return uint64((d + time.Microsecond - 1) / time.Microsecond)
}

func duration(us uint64) (time.Duration, error) {
	if us > uint64(math.MaxInt64/time.Microsecond) {
		return 0, fmt.Errorf("a time of %d microseconds", us)
	}
	return time.Duration(us) * time.Microsecond, nil
}
