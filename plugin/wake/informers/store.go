package informers

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
)

// Store returns what an informer keeps, once it has been told of everything that there is.
type Store func(context.Context) (toolscache.Indexer, error)

// store finds what is kept as a T, and passes over what is kept of the others: their kind is the same, and they say nothing.
type store[T any] struct{ kept Store }

// byIndex finds what an index has by that key and is what is looked for: a key may be that of others, too.
func (s store[T]) byIndex(ctx context.Context, index, key string, wanted func(*T) bool) ([]*T, error) {
	kept, err := s.kept(ctx)
	if err != nil {
		return nil, err
	}
	objects, err := kept.ByIndex(index, key)
	if err != nil {
		return nil, fmt.Errorf("find %T by %s: %w", *new(T), index, err)
	}
	return only(objects, wanted), nil
}

// keys are those by which an index has anything.
func (s store[T]) keys(ctx context.Context, index string) ([]string, error) {
	kept, err := s.kept(ctx)
	if err != nil {
		return nil, err
	}
	return kept.ListIndexFuncValues(index), nil
}

// byName finds what has the name; nil: nothing.
func (s store[T]) byName(ctx context.Context, name types.NamespacedName) (*T, error) {
	kept, err := s.kept(ctx)
	if err != nil {
		return nil, err
	}
	object, _, err := kept.GetByKey(name.String())
	if err != nil {
		return nil, fmt.Errorf("find %T %s: %w", *new(T), name, err)
	}
	typed, _ := object.(*T)
	return typed, nil
}

// all finds whatever is what is looked for.
func (s store[T]) all(ctx context.Context, wanted func(*T) bool) ([]*T, error) {
	kept, err := s.kept(ctx)
	if err != nil {
		return nil, err
	}
	return only(kept.List(), wanted), nil
}

func only[T any](objects []any, wanted func(*T) bool) []*T {
	var found []*T
	for _, object := range objects {
		if typed, ok := object.(*T); ok && wanted(typed) {
			found = append(found, typed)
		}
	}
	return found
}

// anyOf looks for all there are.
func anyOf[T any](*T) bool { return true }
