package node

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"graze/chunk"
	"graze/node/adminpb"
)

// blobMessage is how many bytes of a blob are in one message.
const blobMessage = 256 << 10

// ReadBlob returns the bytes of a blob of a repository from an offset on, as the
// state folder or the registry has them: they are not verified. The caller closes
// the reader.
func (l *Library) ReadBlob(ctx context.Context, repository string, blob chunk.Blob, size, off int64) (io.ReadCloser, error) {
	if off < 0 || off > size {
		return nil, fmt.Errorf("offset %d is not in a blob of %d bytes", off, size)
	}
	if l.blobs.has(blob, size) && l.blobs.check(blob) == nil {
		f, err := l.blobs.open(blob)
		if err != nil {
			return nil, err
		}
		return newSectionReader(f, off, size-off)
	}
	return l.client.Blob(repository, blob, size).ReadRange(ctx, off, size-off)
}

// ReadBlob implements adminpb.AdminServer.
func (a admin) ReadBlob(req *adminpb.ReadBlobRequest, stream grpc.ServerStreamingServer[adminpb.ReadBlobReply]) error {
	r, err := a.node.ReadBlob(stream.Context(), req.GetRepository(), chunk.Blob(req.GetDigest()), req.GetSize(), req.GetOffset())
	if err != nil {
		return status.Error(codes.Unknown, err.Error())
	}
	defer r.Close()
	for {
		// gRPC may go on reading a message after it was sent.
		p := make([]byte, blobMessage)
		n, err := io.ReadFull(r, p)
		if n > 0 {
			if err := stream.Send(&adminpb.ReadBlobReply{Data: p[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return status.Error(codes.Unknown, err.Error())
		}
	}
}

// ReadBlob is Library.ReadBlob, with the credentials that the node has.
func (r *Remote) ReadBlob(ctx context.Context, repository string, blob chunk.Blob, size, off int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := r.admin.ReadBlob(ctx, &adminpb.ReadBlobRequest{Repository: repository, Digest: string(blob), Size: size, Offset: off})
	if err != nil {
		cancel()
		return nil, r.explain(err)
	}
	return &blobStream{remote: r, stream: stream, cancel: cancel}, nil
}

// A blobStream reads what a node sends of a blob.
type blobStream struct {
	remote *Remote
	stream grpc.ServerStreamingClient[adminpb.ReadBlobReply]
	cancel context.CancelFunc
	rest   []byte
}

// Read implements io.Reader.
func (b *blobStream) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		reply, err := b.stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if err != nil {
			return 0, b.remote.explain(err)
		}
		b.rest = reply.GetData()
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (b *blobStream) Close() error {
	b.cancel()
	return nil
}
