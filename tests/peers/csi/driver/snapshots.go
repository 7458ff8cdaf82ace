package main

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// CreateSnapshot copies the volume's directory.
func (c *controller) CreateSnapshot(_ context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if request.Name == "" || request.SourceVolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "a name and a volume are needed")
	}
	c.disk.lock.Lock()
	defer c.disk.lock.Unlock()
	id := idOf(request.Name)
	there, err := c.disk.load(snapshots, id)
	if err == nil {
		if there.Source != request.SourceVolumeId {
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %s is of volume %s", request.Name, there.Source)
		}
		return &csi.CreateSnapshotResponse{Snapshot: snapshot(there)}, nil
	}
	if status.Code(err) != codes.NotFound {
		return nil, err
	}
	volume, err := c.disk.load(volumes, request.SourceVolumeId)
	if err != nil {
		return nil, err
	}
	from, err := c.disk.data(volumes, volume.ID)
	if err != nil {
		return nil, err
	}
	there = &record{ID: id, Name: request.Name, Capacity: volume.Capacity, Source: volume.ID, Made: time.Now()}
	if err := c.disk.create(snapshots, there, from); err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: snapshot(there)}, nil
}

func snapshot(r *record) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: r.ID, SourceVolumeId: r.Source, SizeBytes: r.Capacity, CreationTime: timestamppb.New(r.Made), ReadyToUse: true,
	}
}

func (c *controller) DeleteSnapshot(_ context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if request.SnapshotId == "" {
		return nil, status.Error(codes.InvalidArgument, "a snapshot is needed")
	}
	c.disk.lock.Lock()
	defer c.disk.lock.Unlock()
	return &csi.DeleteSnapshotResponse{}, c.disk.remove(snapshots, request.SnapshotId)
}

func (c *controller) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	c.disk.lock.Lock()
	defer c.disk.lock.Unlock()
	all, err := c.disk.list(snapshots)
	if err != nil {
		return nil, err
	}
	var matching []*record
	for _, r := range all {
		if (request.SnapshotId == "" || r.ID == request.SnapshotId) &&
			(request.SourceVolumeId == "" || r.Source == request.SourceVolumeId) {
			matching = append(matching, r)
		}
	}
	some, next, err := page(matching, request.StartingToken, request.MaxEntries)
	if err != nil {
		return nil, err
	}
	answer := &csi.ListSnapshotsResponse{NextToken: next}
	for _, r := range some {
		answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshot(r)})
	}
	return answer, nil
}
